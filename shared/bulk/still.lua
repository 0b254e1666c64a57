-- Find the runs in which nothing has moved for a while, and give each to whoever asks first.
-- KEYS 1 runs (sorted set)   ARGV 1 prefix of the runs' hashes   2 seconds without a move
-- Returns their ids. A run that stays still is given out again when it has been so for twice as long:
-- looking after it takes long if it has many shards, and most often it only waits for its turn.
local now = tonumber(redis.call('TIME')[1])
local still = {}
for _, run in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
  local key = ARGV[1] .. run
  local state, moved, looked = unpack(redis.call('HMGET', key, 'state', 'moved_at', 'looked_at'))
  moved = tonumber(moved or 0)
  looked = math.max(moved, tonumber(looked or 0))
  if state == 'running' and now - looked >= math.max(tonumber(ARGV[2]), looked - moved) then
    redis.call('HSET', key, 'looked_at', now)
    still[#still + 1] = run
  end
end
return still
