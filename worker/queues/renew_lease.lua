-- Acquire or renew the lease of a worker, and store what it says of itself. A lease that was reclaimed cannot be
-- renewed: other workers have its messages by then.
-- What else a heartbeat must know is in the answer, so that it is one call.
-- KEYS 1 leases (sorted set: worker -> expiry, Unix seconds)   2 lengths of leases (hash: worker -> seconds)
--      3 the status that each worker reports (hash: worker -> JSON)   4 workers that were asked to drain (set)
--      5 claims of the worker (hash: tag -> message)
-- ARGV 1 worker   2 seconds until expiry   3 '1' to acquire, '0' to renew   4 its status ('': none)
-- Returns {1, or 0 if there is no lease to renew; 1 if somebody asked the worker to drain, else 0; workers that
-- have a lease; the tags of the claims, or false if their key holds something else}.
if ARGV[3] ~= '1' and not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return {0, 0, 0, false} end
redis.call('ZADD', KEYS[1], redis.call('TIME')[1] + ARGV[2], ARGV[1])
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then redis.call('HSET', KEYS[2], ARGV[1], ARGV[2]) end
if ARGV[4] ~= '' then redis.pcall('HSET', KEYS[3], ARGV[1], ARGV[4]) end  -- a damaged key costs no lease
local tags = redis.pcall('HKEYS', KEYS[5])
return {
  1, redis.pcall('SISMEMBER', KEYS[4], ARGV[1]) == 1 and 1 or 0, redis.call('ZCARD', KEYS[1]),
  not tags.err and tags}
