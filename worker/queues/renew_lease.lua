-- Keep this worker's lease, unless it was swept: then its messages are somebody else's by now.
-- KEYS 1 leases   ARGV 1 worker   2 seconds   3 '1' to join (start or come back)
-- Returns 1, or 0 if the lease is gone.
if ARGV[3] ~= '1' and not redis.call('ZSCORE', KEYS[1], ARGV[1]) then return 0 end
redis.call('ZADD', KEYS[1], redis.call('TIME')[1] + ARGV[2], ARGV[1])
return 1
