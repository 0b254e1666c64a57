-- Claim some of the due messages. A claimed message is due again when its lease expires, so if its
-- sender dies another sends it. No receiver gets more than its permits, so that one that hangs does
-- not delay the others. A message without a permit keeps its turn, unless its receiver is slow: then
-- it waits, the longer the longer it has waited. In the end such messages are given up: very many of
-- them must not fill Redis. All slow receivers together have few senders, and a few are reserved for receivers
-- that answered lately: invented receivers cost nothing, so any number of them may hang at once.
-- KEYS 1 outbox (sorted set: id by due time)   2 messages (hash: id to JSON)
--      3 receivers that answered (sorted set: receiver by time)
-- ARGV 1 how many to claim   2 lease in seconds   3 how many due messages to look at
--      4 permits of a receiver that is not listed   5 the least delay for slow receivers, seconds
--      6 seconds that a message to a slow receiver may wait without a try: then it is given up
--      7 how many to slow receivers   8 how many to receivers that have not answered lately
--      9 how long an answer counts, seconds
--      10 '' to look at the messages that are due longest; else at those that came last, but for
--         this number
--      11.. receiver (see `receiver_of` below), permits left, 1 if it is slow or 0, receiver ...
-- Returns {{id, JSON, id, JSON, ...} of the claimed messages, the same of those to give up, which
-- are claimed too, how many others were looked at and kept their turn, -1 if no more messages are due
-- than were looked at}.
for _, key in ipairs({KEYS[1], KEYS[3], given_up_of(KEYS[1])}) do set_aside_unless('zset', key) end
set_aside_unless('hash', KEYS[2])
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local wanted = tonumber(ARGV[1])
local slow_left, unproven_left = tonumber(ARGV[7]), tonumber(ARGV[8])
local left, slow, claimed, overdue, kept = {}, {}, {}, {}, 0
for i = 11, #ARGV, 3 do
  left[ARGV[i]], slow[ARGV[i]] = tonumber(ARGV[i + 1]), ARGV[i + 2] == '1'
end

-- Host and port in one spelling: lower case, without user, trailing full stops and the usual port.
local function receiver_of(message)
  local scheme, authority = string.match(message, '"url": ?"(%a+)://([^/?#"]*)')
  if not scheme then return '' end
  authority = string.lower(string.match(authority, '[^@]*$'))
  local host, port = string.match(authority, '^(.-)%.*:(%d*)$')
  host = host or string.match(authority, '^(.-)%.*$')
  local usual = string.lower(scheme) == 'https' and 443 or 80
  port = tonumber(port or '') or usual
  return port == usual and host or host .. ':' .. string.format('%d', port)
end

local function has_answered(receiver)
  local at = redis.call('ZSCORE', KEYS[3], receiver)
  return at and tonumber(at) > now - ARGV[9]
end

local function postpone(id, delay)
  redis.call('ZADD', KEYS[1], string.format('%.6f', now + delay), id)
end

local function claim(id, message, list)
  postpone(id, ARGV[2])
  list[#list + 1] = id
  list[#list + 1] = message
end

-- Let a message wait that got no permit.
local function wait(id, message, is_slow)
  if not is_slow then
    kept = kept + 1
    return
  end
  local age = age_of(message, now)
  if not age then
    redis.call('HSET', KEYS[2], id, with_field(message, 'since', now))
    age = 0
  end
  if age > tonumber(ARGV[6]) then
    claim(id, message, overdue)
  else
    -- All looks at a message together cost about as much as one look at 200 of them, whatever its age.
    postpone(id, math.max(tonumber(ARGV[5]), math.min(age / 20, 3600)))
  end
end

local due = ARGV[10] == '' and redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[3])
  or redis.call('ZREVRANGEBYSCORE', KEYS[1], now, '-inf', 'LIMIT', ARGV[10], ARGV[3])
for _, id in ipairs(due) do
  if #claimed == 2 * wanted then break end
  local message = redis.call('HGET', KEYS[2], id)
  local receiver = receiver_of(message or '')
  local permits = left[receiver] or tonumber(ARGV[4])
  local proven = not slow[receiver] and has_answered(receiver)
  if slow[receiver] then permits = math.min(permits, slow_left) end
  if not proven then permits = math.min(permits, unproven_left) end
  if not message or string.find(id, '[^\32-\126]') then  -- no job has such an id
    redis.call('ZREM', KEYS[1], id)
    redis.call('HDEL', KEYS[2], id)
  elseif permits > 0 then
    left[receiver] = (left[receiver] or tonumber(ARGV[4])) - 1
    if slow[receiver] then slow_left = slow_left - 1 end
    if not proven then unproven_left = unproven_left - 1 end
    claim(id, message, claimed)
  else
    wait(id, message, slow[receiver])
  end
end
return {claimed, overdue, #due == tonumber(ARGV[3]) and kept or -1}
