-- Put a message into the outbox, due now. If its id is there already, it is replaced and due now.
-- KEYS 1 outbox (sorted set: id by due time, Unix seconds)   2 messages (hash: id to JSON)
-- ARGV 1 id   2 message JSON
-- Returns nothing.
local clock = redis.call('TIME')
local now = clock[1] .. '.' .. string.format('%06d', clock[2])
put_message(KEYS[1], KEYS[2], ARGV[1], ARGV[2], now)
