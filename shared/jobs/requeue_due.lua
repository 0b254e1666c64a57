-- Requeue delayed messages that are due: the youngest of those that are due longest. The one that is due longest is
-- pushed last, so that it is nearest to the head of its queue.
-- KEYS 1 delayed messages (sorted set: list \0 message by due time); the key with the suffix `:refused` gets those
--      that cannot be requeued (sorted set: by the time at which they were due)
-- ARGV 1 how many messages to requeue at most   2 among how many of those that are due longest
-- Returns how many were requeued.
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local among = math.min(redis.call('ZCOUNT', KEYS[1], '-inf', now), ARGV[2])
local due = redis.call(
  'ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', math.max(0, among - ARGV[1]), ARGV[1])
for i = #due, 1, -1 do
  local list, message = split_entry(due[i])
  -- This fails if somebody has written the name of a list that workers may not change.
  if list and not pcall(requeue_message, list, message) then redis.call('ZADD', KEYS[1] .. ':refused', clock[1], due[i]) end
  redis.call('ZREM', KEYS[1], due[i])
end
return #due
