-- Find shards that are to be made and of which no message is left anywhere; count them as cancelled.
-- KEYS 1 run (hash)   2 its shards (hash)   3 its workers (hash)   4 its reasons (hash)
--      5 leases (sorted set: worker -> expiry)   6 what is put aside (sorted set of list \0 message)
--      7 and on: the queues of its shards
-- ARGV 1 run's id   2 prefix of the claims hashes
-- Returns their numbers. A worker whose lease ran out counts until others have taken its claims over;
-- one without a lease does not: nobody would.
if redis.call('HGET', KEYS[1], 'state') ~= 'running' then return {} end
local sought = '"' .. string.gsub(ARGV[1], '%p', '%%%0') .. '%-(%d+)"'
local somewhere = {}
local function note(messages)
  for _, message in ipairs(messages) do
    local shard = string.match(message, sought)
    if shard then somewhere[tonumber(shard)] = true end
  end
end
for _, worker in ipairs(redis.call('ZRANGE', KEYS[5], 0, -1)) do
  note(redis.call('HVALS', ARGV[2] .. worker))
end
note(redis.call('ZRANGE', KEYS[6], 0, -1))
for i = 7, #KEYS do
  for _, level in ipairs(LEVELS) do note(redis.call('LRANGE', KEYS[i] .. level, 0, -1)) end
end

local lost = {}
local records = redis.call('HGETALL', KEYS[2])
for i = 1, #records, 2 do
  local shard = records[i]
  local state, rest = string.match(records[i + 1], '^(%a+)|[^|]*(|.*)$')
  if (state == 'queued' or state == 'running') and not somewhere[tonumber(shard)] then
    redis.call('HSET', KEYS[2], shard, 'cancelled|' .. rest)
    redis.call('HINCRBY', KEYS[1], 'shards:' .. state, -1)
    redis.call('HINCRBY', KEYS[1], 'shards:cancelled', 1)
    lost[#lost + 1] = shard
  end
end
return lost
