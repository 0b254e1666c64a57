-- Requeue the delayed messages that are due. The one that is due longest is pushed last, so that it
-- is nearest to the head of its queue.
-- KEYS 1 delayed messages (sorted set: list \0 message by due time); the key with the suffix `:refused` gets those
--      that cannot be requeued (sorted set: by the time at which they were due)
-- ARGV 1 how many messages to requeue at most
-- Returns how many were requeued.
local clock = redis.call('TIME')
local due = redis.call(
  'ZREVRANGEBYSCORE', KEYS[1], clock[1] + clock[2] / 1e6, '-inf', 'LIMIT', 0, ARGV[1])
for _, entry in ipairs(due) do
  local list, message = split_entry(entry)
  -- This fails if somebody has written the name of a list that workers may not change.
  if list and not pcall(requeue_message, list, message) then redis.call('ZADD', KEYS[1] .. ':refused', clock[1], entry) end
  redis.call('ZREM', KEYS[1], entry)
end
return #due
