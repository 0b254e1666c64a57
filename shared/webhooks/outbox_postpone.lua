-- Let a message come due later. One that was delivered or given up meanwhile stays away.
-- KEYS 1 outbox (sorted set)   2 messages (hash)
-- ARGV 1 id   2 message JSON   3 pause, seconds
-- Returns 1 if it waits, 0 if it is no longer there.
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
local clock = redis.call('TIME')
redis.call('ZADD', KEYS[1], string.format('%.6f', clock[1] + clock[2] / 1e6 + ARGV[3]), ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return 1
