-- Claim some of the due messages. A claimed message is due again when its lease expires, so if its
-- sender dies another sends it. A share is a receiver as that of one tenant. No share gets more than its
-- permits, and no tenant more senders than are free then, so that those that hang do not delay the others.
-- A message without a permit keeps its turn, unless its share is slow: then it waits, the longer the longer
-- it has waited. In the end such messages are given up: very many of them must not fill Redis. All slow
-- shares together have few senders, and a few are reserved for receivers that answered lately: invented
-- receivers cost nothing, so any number of them may hang at once.
-- KEYS 1 outbox (sorted set: id by due time)   2 messages (hash: id to JSON)
--      3 receivers that answered (sorted set: receiver by time)
-- ARGV 1 how many to claim   2 lease in seconds   3 how many due messages to look at
--      4 permits of a share that is not listed   5 the least delay for slow shares, seconds
--      6 seconds that a message of a slow share may wait without a try: then it is given up
--      7 how many to slow shares   8 how many to receivers that have not answered lately
--      9 how long an answer counts, seconds
--      10 '' to look at the messages that are due longest; else at those that came last, but for
--         this number
--      11 senders that are free   12 how many slow senders a tenant may have
--      13 how many more than are free a tenant may have if the next is for a receiver that answered lately
--      14.. share (see `share_of` below), permits left, permits taken, 1 if it is slow or 0, share ...
-- Returns {{id, JSON, id, JSON, ...} of the claimed messages, the same of those to give up, which
-- are claimed too, how many others were looked at and kept their turn, -1 if no more messages are due
-- than were looked at}.
for _, key in ipairs({KEYS[1], KEYS[3], given_up_of(KEYS[1])}) do set_aside_unless('zset', key) end
set_aside_unless('hash', KEYS[2])
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
local wanted = tonumber(ARGV[1])
local slow_left, unproven_left = tonumber(ARGV[7]), tonumber(ARGV[8])
local free, slow_of_tenant, spare = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local left, slow, claimed, overdue, kept = {}, {}, {}, {}, 0
local held, held_slow = {}, {}  -- senders by tenant

local function tenant_of(share) return string.match(share, '@(.*)$') or '' end

local function hold(tenant, senders, is_slow)
  held[tenant] = (held[tenant] or 0) + senders
  if is_slow then held_slow[tenant] = (held_slow[tenant] or 0) + senders end
end

for i = 14, #ARGV, 4 do
  local share, is_slow = ARGV[i], ARGV[i + 3] == '1'
  left[share], slow[share] = tonumber(ARGV[i + 1]), is_slow
  hold(tenant_of(share), tonumber(ARGV[i + 2]), is_slow)
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

local function share_of(message, receiver)
  local tenant = string.match(message, '"tenant": ?"([^"]+)"')
  return tenant and receiver .. '@' .. tenant or receiver
end

-- Return how many senders a share may have now: none if its tenant has as many as are free.
local function permits_of(share, tenant, proven)
  local permits = left[share] or tonumber(ARGV[4])
  if slow[share] then
    permits = math.min(permits, slow_left, slow_of_tenant - (held_slow[tenant] or 0))
    if (held_slow[tenant] or 0) >= slow_left then permits = 0 end
  end
  local most = proven and free + spare or math.min(free, unproven_left)
  return (held[tenant] or 0) < most and permits or 0
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
  local share = share_of(message or '', receiver)
  local tenant = tenant_of(share)
  local proven = not slow[share] and has_answered(receiver)
  if not message or string.find(id, '[^\32-\126]') then  -- no job has such an id
    redis.call('ZREM', KEYS[1], id)
    redis.call('HDEL', KEYS[2], id)
  elseif permits_of(share, tenant, proven) > 0 then
    left[share] = (left[share] or tonumber(ARGV[4])) - 1
    hold(tenant, 1, slow[share])
    free = free - 1
    if slow[share] then slow_left = slow_left - 1 end
    if not proven then unproven_left = unproven_left - 1 end
    claim(id, message, claimed)
  else
    wait(id, message, slow[share])
  end
end
return {claimed, overdue, #due == tonumber(ARGV[3]) and kept or -1}
