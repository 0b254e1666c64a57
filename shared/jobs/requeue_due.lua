-- Bring what was put aside and is due back to the head of its queue: the latest first, so that what
-- was due first ends nearest the head.
-- KEYS 1 what is put aside (sorted set: list \0 message by due time)
-- ARGV 1 how many at most
-- Returns how many.
local clock = redis.call('TIME')
local due = redis.call(
  'ZREVRANGEBYSCORE', KEYS[1], clock[1] + clock[2] / 1e6, '-inf', 'LIMIT', 0, ARGV[1])
for _, entry in ipairs(due) do
  local cut = string.find(entry, '\0', 1, true)
  put_back(string.sub(entry, 1, cut - 1), string.sub(entry, cut + 1))
  redis.call('ZREM', KEYS[1], entry)
end
return #due
