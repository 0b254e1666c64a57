-- Stop sending a message that cannot be read, but keep it for an operator to read.
-- KEYS 1 outbox (sorted set)   2 messages (hash)
-- ARGV 1 id   2 message as it was claimed   3 how many given-up messages are kept; the oldest beyond that are dropped
-- Returns nothing.
if redis.call('HGET', KEYS[2], ARGV[1]) == ARGV[2] then give_up_message(KEYS[1], KEYS[2], ARGV[1], ARGV[3]) end
