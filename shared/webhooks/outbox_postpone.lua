-- Make a claimed message due later that was not sent. If it was delivered or given up meanwhile, nothing is changed.
-- KEYS 1 outbox (sorted set)   2 messages (hash)
-- ARGV 1 id   2 message JSON   3 pause in seconds
--      4 seconds that it may wait without a try: from then on it is given up instead
-- Returns 1 if it is to be given up, which leaves it claimed, else 0.
local id = kept_id(KEYS[2], ARGV[1], ARGV[2])
if not id or not redis.call('ZSCORE', KEYS[1], id) then return 0 end
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local age = age_of(ARGV[2], now)
if not age then
  redis.call('HSET', KEYS[2], id, with_field(redis.call('HGET', KEYS[2], id), 'since', now))
elseif age > tonumber(ARGV[4]) then
  return 1
end
redis.call('ZADD', KEYS[1], string.format('%.6f', now + ARGV[3]), id)
return 0
