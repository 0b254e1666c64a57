-- Look at some known queues: forget those that are empty, and drop messages whose job has ended. A claim does
-- both in the queues that it reads; this script does it where no worker claims.
-- KEYS 1 known queues (set)   2 delivery counts (hash: sha1 of message to count)
-- ARGV 1 cursor of SSCAN   2 prefix of job records   3 names to read   4 messages to read
-- Returns {next cursor, queues forgotten, messages dropped}.
local clock = redis.call('TIME')
local budget, forgotten, dropped = tonumber(ARGV[4]), 0, 0

-- Return whether the job of a message has ended. Only the id in the headers counts: decoding is slow, so it is
-- done only if the first id in the text is that of an ended job.
local function has_ended(message)
  local id = string.match(message, '"id": ?"([%w_.-]+)"')
  local state = id and redis.call('HGET', ARGV[2] .. id, 'state')
  if state ~= 'succeeded' and state ~= 'failed' and state ~= 'cancelled' then return false end
  local readable, envelope = pcall(cjson.decode, message)
  return readable and type(envelope) == 'table' and type(envelope.headers) == 'table'
    and envelope.headers.id == id
end

-- Drop ended messages of a list, from another place each time: a list may be longer than the budget.
local function sweep(list, length)
  local first = math.max(0, (clock[2] % length) - math.floor(budget / 2))
  local messages = redis.call('LRANGE', list, first, first + budget - 1)
  budget = budget - #messages
  for _, message in ipairs(messages) do
    if has_ended(message) then
      redis.call('LREM', list, 1, message)
      redis.call('HDEL', KEYS[2], redis.sha1hex(message))
      dropped = dropped + 1
    end
  end
end

local answer = redis.call('SSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[3])
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
  if left == 0 then forgotten = forgotten + redis.call('SREM', KEYS[1], queue) end
end
return {answer[1], forgotten, dropped}
