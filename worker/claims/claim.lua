-- Take up to `want` messages for one batch, and write down in the same call who has them.
-- KEYS 1 this worker's claims (hash: tag -> list \0 message)   2 leases (sorted set: worker -> expiry)
--      3 deliveries so far (hash: sha1 of message -> count)    4 tag counter
--      5.. queue lists, highest priority first
-- ARGV 1 worker   2 want   3 delivery from which on a message is suspect
--      4 '1' if this worker has nothing else in hand   5.. for each list '<level>:<group>'
-- Lists of one level are served one message each per pass; the first message decides the group
-- (compile key) of all the others. A suspect is taken alone, by a worker with nothing else in hand:
-- whoever dies with it cannot be counted for it. Returns {{tag, list, message, deliveries}, …}, or false if this
-- worker's lease is gone: then it must join again first.
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then return false end
local want, taken, group = tonumber(ARGV[2]), {}, nil
local suspect, idle = tonumber(ARGV[3]), ARGV[4] == '1'
local retold = redis.call('HLEN', KEYS[3]) > 0

local function take(list)
  local message = redis.call('RPOP', list)
  if not message then return false end
  local before = retold and redis.call('HGET', KEYS[3], redis.sha1hex(message)) or 0
  local delivery = tonumber(before or 0) + 1
  if delivery >= suspect then
    want = 0
    if #taken > 0 or not idle then
      redis.call('RPUSH', list, message)
      return false
    end
  end
  local tag = tostring(redis.call('INCR', KEYS[4]))
  redis.call('HSET', KEYS[1], tag, list .. '\0' .. message)
  taken[#taken + 1] = {tag, list, message, delivery}
  return true
end

local first = 5
while first <= #KEYS and #taken < want do
  local level = string.match(ARGV[first], '^[^:]*')
  local last = first
  while last < #KEYS and string.match(ARGV[last + 1], '^[^:]*') == level do last = last + 1 end
  local found = true
  while found and #taken < want do
    found = false
    for i = first, last do
      local mine = string.match(ARGV[i], ':(.*)$')
      if #taken < want and (group == nil or group == mine) and take(KEYS[i]) then
        group, found = mine, true
      end
    end
  end
  first = last + 1
end
return taken
