-- Take the messages that are due, the longest due first. They come due again when the lease is
-- over, so those of a sender that died are sent by another. No receiver gets more than its places,
-- so that one that hangs does not hold up everybody's. What finds no place keeps its turn, but
-- steps back when it stands in the way: always if its receiver is known to be slow, else for a moment
-- if all that was looked at did not fill the free senders.
-- KEYS 1 outbox (sorted set)   2 messages (hash)
-- ARGV 1 how many to take   2 lease, seconds   3 how many to look at
--      4 places of a receiver that is not listed   5 how long those of the slow step back, seconds
--      6 the others, seconds
--      7.. receiver (host and port as in the URL), places left, 1 if it is slow or 0, receiver …
-- Returns {id, JSON, id, JSON, …}
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local wanted = tonumber(ARGV[1])
local left, slow, taken, crowded = {}, {}, {}, {}
for i = 7, #ARGV, 3 do
  left[ARGV[i]], slow[ARGV[i]] = tonumber(ARGV[i + 1]), ARGV[i + 2] == '1'
end

local function receiver_of(message)
  return string.match(message, '"url": ?"%a+://([^/?#"]*)') or ''
end

local function come_due_in(pause, id)
  redis.call('ZADD', KEYS[1], string.format('%.6f', now + pause), id)
end

local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[3])
for _, id in ipairs(due) do
  if #taken == 2 * wanted then return taken end
  local message = redis.call('HGET', KEYS[2], id)
  local receiver = receiver_of(message or '')
  local places = left[receiver] or tonumber(ARGV[4])
  if not message then
    redis.call('ZREM', KEYS[1], id)
  elseif places > 0 then
    left[receiver] = places - 1
    come_due_in(ARGV[2], id)
    taken[#taken + 1] = id
    taken[#taken + 1] = message
  elseif slow[receiver] then
    come_due_in(ARGV[5], id)
  else
    crowded[#crowded + 1] = id
  end
end
if #due == tonumber(ARGV[3]) then
  for _, id in ipairs(crowded) do come_due_in(ARGV[6], id) end
end
return taken
