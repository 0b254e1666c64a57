-- Find shards that are to be made and of which no message is left anywhere. Changes nothing.
-- KEYS 1 run (hash)   2 its shards (hash)   3 leases (sorted set: worker -> expiry)
--      4 and on: the queues of its shards
-- ARGV 1 run's id   2 prefix of the claims hashes
-- Returns {number, state, attempt} of each; state `none` is a shard without a record. Nothing is put
-- aside or retried later of shards, so there is no third place. A worker whose lease ran out counts
-- until others have taken its claims over; one without a lease does not: nobody would.
if redis.call('HGET', KEYS[1], 'state') ~= 'running' then return {} end
local sought = '"' .. string.gsub(ARGV[1], '%p', '%%%0') .. '%-(%d+)"'
local somewhere = {}
local function note(messages)
  for _, message in ipairs(messages) do
    local shard = string.match(message, sought)
    if shard then somewhere[tonumber(shard)] = true end
  end
end
for _, worker in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  note(redis.call('HVALS', ARGV[2] .. worker))
end
for i = 4, #KEYS do
  for _, level in ipairs(LEVELS) do note(redis.call('LRANGE', KEYS[i] .. level, 0, -1)) end
end

local records = {}
local all = redis.call('HGETALL', KEYS[2])
for i = 1, #all, 2 do records[tonumber(all[i])] = all[i + 1] end
local lost = {}
for shard = 0, tonumber(redis.call('HGET', KEYS[1], 'shards')) - 1 do
  local state, attempt = string.match(records[shard] or 'none|', '^(%a+)|([^|]*)')
  local ended = state == 'succeeded' or state == 'failed'
  if not ended and not somewhere[shard] then lost[#lost + 1] = {shard, state, attempt} end
end
return lost
