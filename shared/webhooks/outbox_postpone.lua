-- Make a message due later. If it was delivered or given up meanwhile, nothing is changed.
-- KEYS 1 outbox (sorted set)   2 messages (hash)
-- ARGV 1 id   2 message JSON   3 pause in seconds
-- Returns 1 if it is postponed, 0 if it is not in the outbox any more.
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
local clock = redis.call('TIME')
redis.call('ZADD', KEYS[1], string.format('%.6f', clock[1] + clock[2] / 1e6 + ARGV[3]), ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return 1
