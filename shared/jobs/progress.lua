-- Record the progress of a running attempt, and put its callback into the outbox.
-- KEYS 1 job record (hash)   2 outbox (sorted set: id by due time)   3 outbox messages (hash)
-- ARGV 1 attempt   2 step   3 steps   4 callback id ('' for none)   5 callback message JSON
--      6 preview ('' for none)
-- Returns 1, 0 if the producer asked to cancel, -1 if the attempt does not hold the job any more.
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
