-- Add a dead letter. If it is there already, its reason and time are renewed.
-- KEYS 1 dead letters (sorted set: id by time)   2 their contents (hash: id to JSON)
-- ARGV 1 id   2 JSON   3 how many letters are kept; the oldest beyond that are dropped
-- Returns nothing.
redis.call('ZADD', KEYS[1], redis.call('TIME')[1], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1 - ARGV[3])) do
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
end
