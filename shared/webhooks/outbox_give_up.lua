-- Stop sending a message, but keep it for an operator to read and replay.
-- KEYS 1 outbox (sorted set)   2 messages (hash)   3 given-up messages (sorted set: id by time)
-- ARGV 1 id   2 how many given-up messages are kept; the oldest beyond that are dropped
-- Returns nothing.
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZADD', KEYS[3], redis.call('TIME')[1], ARGV[1])
for _, id in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1 - ARGV[2])) do
  redis.call('ZREM', KEYS[3], id)
  redis.call('HDEL', KEYS[2], id)
end
