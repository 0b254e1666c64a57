-- Requeue the messages of all workers whose lease expired, or of one worker that gives up its lease.
-- KEYS 1 leases (sorted set: worker -> expiry, Unix seconds)   2 deliveries (hash: sha1 of message -> count)
-- ARGV 1 prefix of the claims hashes   2 worker that gives up its lease ('': all whose lease expired)
--      3 deliveries to count for each message
-- Returns {{worker, number of messages}, …}.
local workers = {ARGV[2]}
if ARGV[2] == '' then
  workers = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', redis.call('TIME')[1])
end
local reclaimed = {}
for _, worker in ipairs(workers) do
  local claims = redis.call('HGETALL', ARGV[1] .. worker)
  -- Newest tags first, so that the oldest message ends nearest the head.
  local entries = {}
  for i = 1, #claims, 2 do entries[#entries + 1] = {tonumber(claims[i]), claims[i + 1]} end
  table.sort(entries, function(a, b) return a[1] > b[1] end)
  for _, entry in ipairs(entries) do
    local cut = string.find(entry[2], '\0', 1, true)
    local message = string.sub(entry[2], cut + 1)
    requeue_message(string.sub(entry[2], 1, cut - 1), message)
    if ARGV[3] ~= '0' then redis.call('HINCRBY', KEYS[2], redis.sha1hex(message), ARGV[3]) end
  end
  redis.call('DEL', ARGV[1] .. worker)
  redis.call('ZREM', KEYS[1], worker)
  reclaimed[#reclaimed + 1] = {worker, #entries}
end
return reclaimed
