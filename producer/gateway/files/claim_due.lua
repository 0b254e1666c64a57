-- Claim the member that is due first, so that no other gateway takes it for a while.
-- KEYS 1 members by the time at which they are due (sorted set)
-- ARGV 1 seconds until the claimed member is due again
-- Returns the member, or false if none is due.
set_aside_unless('zset', KEYS[1])
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 1)[1]
if due then redis.call('ZADD', KEYS[1], string.format('%.6f', now + ARGV[1]), due) end
return due
