-- Requeue the messages of all workers whose lease expired, or of one worker that gives up its lease.
-- Shorten leases that end later than their lengths allow: the clock of the server was set back after their
-- workers renewed them, and those that are dead would keep their messages for as long as that.
-- KEYS 1 leases (sorted set: worker -> expiry, Unix seconds)   2 lengths of leases (hash: worker -> seconds)
--      3 deliveries (hash: sha1 of message -> count)
--      4 the status that each worker reports (hash: worker -> JSON)   5 workers that were asked to drain (set)
-- ARGV 1 prefix of the claims hashes   2 worker that gives up its lease ('': all whose lease expired)
--      3 deliveries to count for each message   4 seconds of this worker's lease   5 how many times as long one that rests is
-- Returns {{worker, number of messages}, …}.
local MAX_LEASE_S = 3600  -- the length of a lease that is not known: release 0.1.0 stores no lengths
local MAX_LEASES_READ = 1000

local function shorten_leases(now)
  local latest = now + 2 * ARGV[4] * ARGV[5]
  local ahead = redis.call(
    'ZRANGEBYSCORE', KEYS[1], '(' .. latest, '+inf', 'LIMIT', 0, MAX_LEASES_READ)
  for _, worker in ipairs(ahead) do
    local length = tonumber(redis.call('HGET', KEYS[2], worker)) or MAX_LEASE_S
    if tonumber(redis.call('ZSCORE', KEYS[1], worker)) > now + 2 * length * ARGV[5] then
      redis.call('ZADD', KEYS[1], now + length, worker)
    end
  end
end

for i = 2, 4 do set_aside_unless('hash', KEYS[i]) end
set_aside_unless('set', KEYS[5])
local workers = {ARGV[2]}
if ARGV[2] == '' then
  local now = tonumber(redis.call('TIME')[1])
  shorten_leases(now)
  workers = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)
end
-- Workers of release 0.1.0 remove leases of others and leave their status.
local function forget_without_lease()
  for _, worker in ipairs(redis.call('HKEYS', KEYS[4])) do
    if not redis.call('ZSCORE', KEYS[1], worker) then redis.call('HDEL', KEYS[4], worker) end
  end
end

if ARGV[2] == '' then forget_without_lease() end
local reclaimed = {}
for _, worker in ipairs(workers) do
  set_aside_unless('hash', ARGV[1] .. worker)
  local claims = redis.call('HGETALL', ARGV[1] .. worker)
  -- Newest tags first, so that the oldest message ends nearest the head.
  local entries = {}
  for i = 1, #claims, 2 do
    entries[#entries + 1] = {tag = claims[i], number = tonumber(claims[i]) or 0, text = claims[i + 1]}
  end
  table.sort(entries, function(a, b) return a.number > b.number end)
  for _, entry in ipairs(entries) do
    -- Entry by entry: if an error ends the script, none is lost and none is requeued twice.
    redis.call('HDEL', ARGV[1] .. worker, entry.tag)
    local list, message = split_entry(entry.text)
    if list then
      requeue_message(list, message)
      if ARGV[3] ~= '0' then redis.pcall('HINCRBY', KEYS[3], redis.sha1hex(message), ARGV[3]) end
    end
  end
  redis.call('ZREM', KEYS[1], worker)
  redis.call('HDEL', KEYS[2], worker)
  redis.call('HDEL', KEYS[4], worker)
  redis.call('SREM', KEYS[5], worker)
  reclaimed[#reclaimed + 1] = {worker, #entries}
end
return reclaimed
