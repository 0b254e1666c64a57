-- Put a given-up message back into the outbox, due now.
-- KEYS 1 outbox (sorted set)   2 messages (hash)   3 given-up messages (sorted set)
-- ARGV 1 id   2 message JSON
-- Returns 1, or 0 if there is no such given-up message.
if redis.call('ZREM', KEYS[3], ARGV[1]) == 0 then return 0 end
local now = redis.call('TIME')[1]
put_message(KEYS[1], KEYS[2], ARGV[1], ARGV[2], now)
return 1
