-- Find the shards that are not finished and that have no message anywhere. This script changes
-- nothing.
-- KEYS 1 run (hash)   2 its shards (hash)   3 leases (sorted set: worker -> expiry)
--      4 and up: the queues of the shards
-- ARGV 1 run's id   2 prefix of the claims hashes
-- Returns {number, state, attempt} for each lost shard; the state is `none` if it has no record.
-- Messages of shards are in queues and in claims; a message that is delayed until a newer worker comes
-- counts as lost, and its shard gets a second one. The claims of a
-- worker whose lease expired still count, because another worker will reclaim them. The claims of a
-- worker without a lease do not count, because nobody will.
if redis.call('HGET', KEYS[1], 'state') ~= 'running' then return {} end
local id_pattern = '"' .. string.gsub(ARGV[1], '%p', '%%%0') .. '%-(%d+)"'
local has_message = {}
local function mark_shards_of(messages)
  for _, message in ipairs(messages) do
    local shard = string.match(message, id_pattern)
    if shard then has_message[tonumber(shard)] = true end
  end
end
for _, worker in ipairs(redis.call('ZRANGE', KEYS[3], 0, -1)) do
  mark_shards_of(read_derived('HVALS', ARGV[2] .. worker))  -- an error is a table without numbers
end
for i = 4, #KEYS do
  for _, level in ipairs(LEVELS) do
    mark_shards_of(read_derived('LRANGE', KEYS[i] .. level, 0, -1))
  end
end

local records = {}
local fields = redis.pcall('HGETALL', KEYS[2])
for i = 1, #fields, 2 do records[fields[i]] = fields[i + 1] end
local lost = {}
for shard = 0, (tonumber(redis.call('HGET', KEYS[1], 'shards')) or 0) - 1 do
  local state, attempt = unpack(parse_shard_record(records[tostring(shard)]))
  local terminal = state == 'succeeded' or state == 'failed'
  if not terminal and not has_message[shard] then lost[#lost + 1] = {shard, state, attempt} end
end
return lost
