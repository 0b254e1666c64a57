-- Add a job to the list of its tenant, unless it is there. Return 1 if it was added.
-- KEYS 1 jobs of a tenant (sorted set: id to microseconds, each one its own)
-- ARGV 1 id   2 how many jobs are kept   3 seconds that a job is kept
set_aside_unless('zset', KEYS[1])
if redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local newest = redis.call('ZREVRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2]
local at = newest and math.max(now, tonumber(newest) + 1) or now  -- so that a time names one place in the list
redis.call('ZADD', KEYS[1], string.format('%.0f', at), ARGV[1])
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -1 - ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - ARGV[3] * 1000000))
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
