-- Acquire or renew the lease of a worker, and store what it says of itself. A lease that was reclaimed cannot be
-- renewed: other workers have its messages by then.
-- What else a heartbeat must know is in the answer, so that it is one call.
-- KEYS 1 leases (sorted set: worker -> expiry, Unix seconds)   2 lengths of leases (hash: worker -> seconds)
--      3 the status that each worker reports (hash: worker -> JSON)   4 workers that were asked to drain (set)
--      5 claims of the worker (hash: tag -> message)   6 delayed messages (sorted set: list \0 message by due time)
-- ARGV 1 worker   2 seconds until expiry   3 '1' to acquire, '0' to renew   4 its status ('': none)
--      5 seconds until a lease that rests expires   6 '1' if this lease may rest. It does where the worker has no claims
--        and no other lease has expired or ends within half the length of this one: one that rests hears nothing of it
-- Returns {1, 2 if the lease rests, or 0 if there is none to renew; 1 if somebody asked the worker to drain, else 0; workers that
-- have a lease; the tags of the claims, or false if their key holds something else; 1 if a lease has expired or ends
-- later than twice the length of one that rests, else 0; 1 if delayed messages are due, else 0; seconds until the next lease
-- expires, as a string}.
set_aside_unless('zset', KEYS[1])
set_aside_unless('hash', KEYS[2])
if ARGV[3] ~= '1' and not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  return {0, 0, 0, false, 0, 0, '0'}
end
local seconds, microseconds = unpack(redis.call('TIME'))
local now = tonumber(seconds)
local tags = redis.pcall('HKEYS', KEYS[5])
redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[1])
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then redis.call('HSET', KEYS[2], ARGV[1], ARGV[2]) end
if ARGV[4] ~= '' then redis.pcall('HSET', KEYS[3], ARGV[1], ARGV[4]) end  -- a damaged key costs no lease

-- Return whether a sorted set has a member with such a score. A key of another type has none.
local function has_any(key, from, to)
  local count = redis.pcall('ZCOUNT', key, from, to)
  return type(count) == 'number' and count > 0
end
local next_lease = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
local next_expiry_s = (next_lease[2] or now) - now - microseconds / 1e6  -- a lease of 0 s has expired already
local any_expired = has_any(KEYS[1], '-inf', now)
local any_wrong = any_expired or has_any(KEYS[1], '(' .. now + 2 * ARGV[5], '+inf')
local rests = ARGV[6] == '1' and not tags.err and #tags == 0 and not any_expired and next_expiry_s > ARGV[2] / 2
if rests then redis.call('ZADD', KEYS[1], now + ARGV[5], ARGV[1]) end
return {
  rests and 2 or 1, redis.pcall('SISMEMBER', KEYS[4], ARGV[1]) == 1 and 1 or 0, redis.call('ZCARD', KEYS[1]),
  not tags.err and tags, any_wrong and 1 or 0, has_any(KEYS[6], '-inf', now + 1) and 1 or 0,
  tostring(next_expiry_s)}
