-- Put the messages of dead workers back to the head of their queues.
-- KEYS 1 leases   2 deliveries
-- ARGV 1 prefix of the claims hashes   2 worker to sweep ('' for all whose lease ran out)
--      3 what a message's delivery count grows by
-- Returns {{worker, messages put back}, …}.
local dead = {ARGV[2]}
if ARGV[2] == '' then
  dead = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', redis.call('TIME')[1])
end
local swept = {}
for _, worker in ipairs(dead) do
  local claims = redis.call('HGETALL', ARGV[1] .. worker)
  -- Newest tags first, so that the oldest message ends nearest the head.
  local entries = {}
  for i = 1, #claims, 2 do entries[#entries + 1] = {tonumber(claims[i]), claims[i + 1]} end
  table.sort(entries, function(a, b) return a[1] > b[1] end)
  for _, entry in ipairs(entries) do
    local cut = string.find(entry[2], '\0', 1, true)
    local message = string.sub(entry[2], cut + 1)
    put_back(string.sub(entry[2], 1, cut - 1), message)
    if ARGV[3] ~= '0' then redis.call('HINCRBY', KEYS[2], redis.sha1hex(message), ARGV[3]) end
  end
  redis.call('DEL', ARGV[1] .. worker)
  redis.call('ZREM', KEYS[1], worker)
  swept[#swept + 1] = {worker, #entries}
end
return swept
