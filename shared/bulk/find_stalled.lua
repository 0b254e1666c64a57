-- Find the runs in which nothing has moved for a while, and give one of them to whoever asks.
-- KEYS 1 runs (sorted set)   2 stands while no other search is due
--      3 those found then that nobody has been given yet (set)
-- ARGV 1 prefix of the runs' hashes   2 seconds without a move, also between two searches
-- Returns its id, or nothing. A run that stays still is given out again when it has been so for twice
-- as long: looking after it takes long if it has many shards, and most often it only waits its turn.
-- But what it loses meanwhile is found no later than after LONGEST.
local LONGEST = 600  -- seconds
local now, for_s = tonumber(redis.call('TIME')[1]), tonumber(ARGV[2])

local function is_still(run)
  local key = ARGV[1] .. run
  local state, moved, looked = unpack(redis.call('HMGET', key, 'state', 'moved_at', 'looked_at'))
  if state ~= 'running' then return false end
  if not moved then  -- begun by a version that did not note it
    redis.call('HSET', key, 'moved_at', now)
    return false
  end
  looked = math.max(tonumber(moved), tonumber(looked or 0))
  return now - looked >= math.max(for_s, math.min(looked - tonumber(moved), LONGEST))
end

-- Most runs have ended: of 10,000 each search takes 20 ms, so the fleet makes one, not each worker.
if redis.call('EXISTS', KEYS[1]) == 0 then return end
if redis.call('SET', KEYS[2], now, 'NX', 'PX', math.ceil(1000 * for_s)) then
  redis.call('DEL', KEYS[3])
  for _, run in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    if is_still(run) then redis.call('SADD', KEYS[3], run) end
  end
end
local run = redis.call('SPOP', KEYS[3])
while run and not is_still(run) do run = redis.call('SPOP', KEYS[3]) end
if run then redis.call('HSET', ARGV[1] .. run, 'looked_at', now) end
return run
