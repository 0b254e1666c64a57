-- Move a claimed message to the delayed messages until it is due.
-- KEYS 1 claims of this worker (hash: tag -> list \0 message)
--      2 delayed messages (sorted set: list \0 message by due time)
--      3 deliveries (hash: sha1 of message -> count); given if this counts a delivery
-- ARGV 1 tag   2 due time, Unix seconds; with KEYS 3: seconds until it is due
-- Returns 0 if the message is due already, which leaves it claimed; 1 if this worker does not hold it now.
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry then return 1 end
local clock = redis.call('TIME')
local now, due = clock[1] + clock[2] / 1e6, ARGV[2]
if KEYS[3] then
  due = string.format('%.6f', now + ARGV[2])
  local message = string.sub(entry, string.find(entry, '\0', 1, true) + 1)
  redis.call('HINCRBY', KEYS[3], redis.sha1hex(message), 1)
elseif tonumber(due) <= now then
  return 0
end
redis.call('ZADD', KEYS[2], due, entry)
redis.call('HDEL', KEYS[1], ARGV[1])
return 1
