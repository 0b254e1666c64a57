-- Delay a running job until its retry: change its record, and move its message from the claims to
-- the delayed messages.
-- KEYS 1 job record (hash)   2 claims of the worker (hash: tag to list \0 message)
--      3 delayed messages (sorted set: list \0 message by due time)   4 failures by host: what the keys begin with
-- ARGV 1 attempt that must hold the job   2 tag that must be among the claims   3 pause in seconds
--      4 code of the error   5 its message
-- Returns 1, 0 if the attempt does not hold the job or the message, -1 if the producer asked to
-- cancel. Nothing is changed unless it returns 1.
local record = redis.call('HMGET', KEYS[1], 'state', 'attempt', 'cancel_requested', 'failures')
local entry = redis.call('HGET', KEYS[2], ARGV[2])
if record[1] ~= 'running' or record[2] ~= ARGV[1] or not entry then return 0 end
if record[3] then return -1 end
local clock = redis.call('TIME')
local due = string.format('%.6f', clock[1] + clock[2] / 1e6 + ARGV[3])
redis.call('ZADD', KEYS[3], due, entry)
redis.call('HDEL', KEYS[2], ARGV[2])
redis.call('HINCRBY', KEYS[1], 'retries', 1)
count_failure(KEYS[4], ARGV[1], ARGV[4], clock[1])
local failures = with_failure(record[4], ARGV[1], ARGV[4], ARGV[5], due - ARGV[3])
redis.call('HSET', KEYS[1], 'state', 'queued', 'retry_at', due, 'step', '0', 'failures', failures)
redis.call('HDEL', KEYS[1], 'attempt', 'started_at')
publish_change(KEYS[1], 'queued')
return 1
