-- Note that models are offered now, and forget those that nobody has offered for a while.
-- KEYS 1 offers (hash: model to JSON)   2 when each was offered last (sorted set: model by time)
-- ARGV 1 seconds for which an offer is kept   2.. models that are offered now
-- Returns the models that were forgotten.
set_aside_unless('hash', KEYS[1])
set_aside_unless('zset', KEYS[2])
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
for i = 2, #ARGV do redis.call('ZADD', KEYS[2], now, ARGV[i]) end
for _, model in ipairs(redis.call('HKEYS', KEYS[1])) do
  redis.call('ZADD', KEYS[2], 'NX', now, model)  -- an older release has announced it
end
local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[1])
for _, model in ipairs(old) do
  redis.call('HDEL', KEYS[1], model)
  redis.call('ZREM', KEYS[2], model)
end
return old
