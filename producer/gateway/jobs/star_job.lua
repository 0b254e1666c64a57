-- Add a job to those that a tenant has starred, unless it is there.
-- KEYS 1 starred jobs of a tenant (sorted set: stored id to microseconds, each one its own)
-- ARGV 1 stored id   2 microseconds at which it was submitted   3 how many jobs are kept   4 seconds that they are kept
set_aside_unless('zset', KEYS[1])
redis.call('EXPIRE', KEYS[1], ARGV[4])
if redis.call('ZSCORE', KEYS[1], ARGV[1]) then return end
local at = tonumber(ARGV[2])
local function taken() return redis.call('ZCOUNT', KEYS[1], string.format('%.0f', at), string.format('%.0f', at)) > 0 end
while taken() do at = at + 1 end  -- jobs that were submitted together have one time; here it names one place in the list
redis.call('ZADD', KEYS[1], string.format('%.0f', at), ARGV[1])
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - ARGV[3])
redis.call('EXPIRE', KEYS[1], ARGV[4])
