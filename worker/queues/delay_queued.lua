-- Move the claimed message of a job that has not started to the delayed messages, and write into the job's
-- record when it is due, unless the record is that of another job. This counts neither a delivery nor a retry.
-- KEYS 1 claims of this worker (hash: tag -> list \0 message)
--      2 delayed messages (sorted set: list \0 message by due time)   3 record of the job (hash)
-- ARGV 1 tag   2 pause in seconds   3 SHA-1 of the request that the message was stored with ('': not known)
-- Returns 1, or 0 if this worker does not hold the message now.
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry then return 0 end
local clock = redis.call('TIME')
local due = string.format('%.6f', clock[1] + clock[2] / 1e6 + ARGV[2])
redis.call('ZADD', KEYS[2], due, entry)
redis.call('HDEL', KEYS[1], ARGV[1])
if redis.call('HGET', KEYS[3], 'state') == 'queued' and not is_superseded(KEYS[3], ARGV[3]) then
  redis.call('HSET', KEYS[3], 'retry_at', due)
  publish_change(KEYS[3], 'queued')
end
return 1
