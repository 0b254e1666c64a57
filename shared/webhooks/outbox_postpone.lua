-- Make a claimed message due later that was not sent. If it was delivered or given up meanwhile, nothing is changed.
-- KEYS 1 outbox (sorted set)   2 messages (hash)
-- ARGV 1 id   2 message JSON   3 pause in seconds
-- Returns nothing.
local id = kept_id(KEYS[2], ARGV[1], ARGV[2])
if id and redis.call('ZSCORE', KEYS[1], id) then
  local clock = redis.call('TIME')
  redis.call('ZADD', KEYS[1], string.format('%.6f', clock[1] + clock[2] / 1e6 + ARGV[3]), id)
end
