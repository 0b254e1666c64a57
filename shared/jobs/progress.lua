-- Note how far a running attempt is, and hear whether it should go on.
-- KEYS 1 job record   2 outbox (sorted set by due time)   3 outbox messages (hash)
-- ARGV 1 attempt   2 step   3 steps   4 callback id ('' for none)   5 callback message JSON
--      6 preview ('' for none)
-- Returns 1 to go on, 0 when the producer asked to cancel, -1 when another attempt holds the job.
local record = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'cancel_requested')
if record[1] ~= 'running' or record[2] ~= ARGV[1] then return -1 end
redis.call('HSET', KEYS[1], 'step', ARGV[2], 'steps', ARGV[3])
if ARGV[6] ~= '' then redis.call('HSET', KEYS[1], 'preview', ARGV[6]) end
if ARGV[4] ~= '' then
  redis.call('ZADD', KEYS[2], redis.call('TIME')[1], ARGV[4])
  redis.call('HSET', KEYS[3], ARGV[4], ARGV[5])
end
if record[3] then return 0 end
return 1
