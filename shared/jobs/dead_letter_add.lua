-- Add a dead letter. If it is there already, its reason and time are renewed. The oldest beyond the limits are dropped.
-- KEYS 1 dead letters (sorted set: id by time)   2 their contents (hash: id to JSON)
--      3 totals (hash: `bytes` of the contents, at most so many; `dropped` letters so far)
-- ARGV 1 id   2 JSON   3 how many letters are kept   4 bytes that are kept
-- Returns how many letters were dropped.
local LEFT_SHARE = 0.9  -- of the bytes, so that they are seldom counted
local dropped = 0
local function drop(id)
  redis.call('ZREM', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
  dropped = dropped + 1
end

set_aside_unless('zset', KEYS[1])
set_aside_unless('hash', KEYS[2])
set_aside_unless('hash', KEYS[3])
redis.call('ZADD', KEYS[1], redis.call('TIME')[1], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1 - ARGV[3])) do drop(id) end

-- Letters that were redriven, or dropped by others, are subtracted only here. Release 0.1.0 kept no total, so its
-- letters are counted here too.
local most = tonumber(ARGV[4])
local is_counted = redis.call('HEXISTS', KEYS[3], 'bytes') == 1
local total = redis.pcall('HINCRBY', KEYS[3], 'bytes', #ARGV[2])  -- an error if somebody wrote no number there
if not is_counted or type(total) ~= 'number' or total > most then
  local lengths, bytes = {}, 0
  for _, id in ipairs(redis.call('HKEYS', KEYS[2])) do
    lengths[id] = redis.call('HSTRLEN', KEYS[2], id)
    bytes = bytes + lengths[id]
  end
  if bytes > most then
    for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, -2)) do
      if bytes <= LEFT_SHARE * most then break end
      if id ~= ARGV[1] then
        drop(id)
        bytes = bytes - (lengths[id] or 0)
      end
    end
  end
  redis.call('HSET', KEYS[3], 'bytes', bytes)
end
if dropped > 0 then redis.pcall('HINCRBY', KEYS[3], 'dropped', dropped) end
return dropped
