-- Let go of one message: finished for good, or back to the head of its queue.
-- KEYS 1 this worker's claims   2 deliveries
-- ARGV 1 tag   2 '1' to put it back   3 what its delivery count grows by then
-- Returns 1, or 0 if the claim is not this worker's any more.
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
local cut = string.find(entry, '\0', 1, true)
local message = string.sub(entry, cut + 1)
if ARGV[2] == '1' then
  put_back(string.sub(entry, 1, cut - 1), message)
  if ARGV[3] ~= '0' then redis.call('HINCRBY', KEYS[2], redis.sha1hex(message), ARGV[3]) end
else
  redis.call('HDEL', KEYS[2], redis.sha1hex(message))
end
return 1
