-- Store what a worker offers, whatever the key holds.
-- KEYS 1 offers (hash: model to JSON)
-- ARGV 1 offer as JSON   2.. models that it is stored for
set_aside_unless('hash', KEYS[1])
for i = 2, #ARGV do redis.call('HSET', KEYS[1], ARGV[i], ARGV[1]) end
