-- Claim due messages, the longest due first. A claimed message is due again when its lease expires,
-- so if its sender dies another sends it. No receiver gets more than its places, so that one that
-- hangs does not delay the others. A message that finds no place keeps its turn, unless it hides
-- others: messages to slow receivers are always delayed, and those to busy receivers for a moment if
-- more messages may be due than were looked at.
-- KEYS 1 outbox (sorted set: id by due time)   2 messages (hash: id to JSON)
-- ARGV 1 how many to claim   2 lease in seconds   3 how many due messages to look at
--      4 places of a receiver that is not listed   5 delay for slow receivers, seconds
--      6 delay for busy receivers, seconds
--      7.. receiver (host and port as in the URL), places left, 1 if it is slow or 0, receiver ...
-- Returns {id, JSON, id, JSON, ...}.
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local wanted = tonumber(ARGV[1])
local left, slow, claimed, busy = {}, {}, {}, {}
for i = 7, #ARGV, 3 do
  left[ARGV[i]], slow[ARGV[i]] = tonumber(ARGV[i + 1]), ARGV[i + 2] == '1'
end

local function receiver_of(message)
  return string.match(message, '"url": ?"%a+://([^/?#"]*)') or ''
end

local function postpone(id, delay)
  redis.call('ZADD', KEYS[1], string.format('%.6f', now + delay), id)
end

local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[3])
for _, id in ipairs(due) do
  if #claimed == 2 * wanted then return claimed end
  local message = redis.call('HGET', KEYS[2], id)
  local receiver = receiver_of(message or '')
  local places = left[receiver] or tonumber(ARGV[4])
  if not message then
    redis.call('ZREM', KEYS[1], id)
  elseif places > 0 then
    left[receiver] = places - 1
    postpone(id, ARGV[2])
    claimed[#claimed + 1] = id
    claimed[#claimed + 1] = message
  elseif slow[receiver] then
    postpone(id, ARGV[5])
  else
    busy[#busy + 1] = id
  end
end
if #due == tonumber(ARGV[3]) then
  for _, id in ipairs(busy) do postpone(id, ARGV[6]) end
end
return claimed
