-- Look at some known queues: forget those that are empty, and drop messages whose job has ended. A claim does
-- both in the queues that it reads; this script does it where no worker claims.
-- KEYS 1 known queues (set)   2 delivery counts (hash: sha1 of message to count)
--      3 cursor of SSCAN at which the next sweep of the fleet goes on (string; missing: at the beginning)
-- ARGV 1 prefix of job records   2 names to read   3 messages to read
-- Returns {queues forgotten, messages dropped}.
local CURSOR_TTL_S = 3600

local clock = redis.call('TIME')
local budget, forgotten, dropped = tonumber(ARGV[3]), 0, 0

local MAX_DEPTH = 10000  -- from the head of a list: Redis finds positions near an end at once
local DROPPED = '\0dropped'  -- takes the place of a dropped message until its list is cleaned

-- Return whether a message is of no use to anybody: imagefleet wrote it together with its record (Celery's own
-- messages may still owe a result or a chain), and the job has ended. Only the id in the headers counts:
-- decoding is slow, so it is done only if the first id in the text is that of an ended job.
local function has_ended(message)
  local id = string.match(message, '"id": ?"([%w_.-]+)"')
  local state = id and redis.pcall('HGET', ARGV[1] .. id, 'state')  -- an error is a table
  if state ~= 'succeeded' and state ~= 'failed' and state ~= 'cancelled' then return false end
  local readable, envelope = pcall(cjson.decode, message)
  return readable and type(envelope) == 'table' and type(envelope.headers) == 'table'
    and envelope.headers.id == id and envelope.headers.recorded == true
end

-- Drop ended messages of a list, from another place each time: a list may be longer than the budget.
local function sweep(list, length)
  local ahead = math.max(0, clock[2] % math.min(length, MAX_DEPTH) - math.floor(budget / 2))
  local messages = redis.call('LRANGE', list, -(ahead + budget), -(ahead + 1))
  budget = budget - #messages
  local ended = 0
  for at, message in ipairs(messages) do
    if has_ended(message) then
      redis.call('LSET', list, -(ahead + 1 + #messages - at), DROPPED)
      redis.call('HDEL', KEYS[2], redis.sha1hex(message))
      ended = ended + 1
    end
  end
  if ended > 0 then redis.call('LREM', list, -ended, DROPPED) end
  dropped = dropped + ended
end

local cursor = redis.pcall('GET', KEYS[3])
cursor = type(cursor) == 'string' and string.match(cursor, '^%d+$') or '0'
set_aside_unless('set', KEYS[1])
local answer = redis.call('SSCAN', KEYS[1], cursor, 'COUNT', ARGV[2])
if answer[1] == '0' then
  redis.call('DEL', KEYS[3])
else
  redis.call('SET', KEYS[3], answer[1], 'EX', CURSOR_TTL_S)
end
for _, queue in ipairs(answer[2]) do
  local left = 0
  for _, level in ipairs(LEVELS) do
    local list = queue .. level
    local kind = redis.call('TYPE', list).ok
    local length = kind == 'list' and redis.call('LLEN', list) or 0
    if length > 0 and budget > 0 then
      sweep(list, length)
      length = redis.call('LLEN', list)
    end
    left = left + length
  end
  if left == 0 then forgotten = forgotten + forget_queue(KEYS[1], queue) end
end
return {forgotten, dropped}
