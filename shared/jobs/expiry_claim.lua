-- Claim the job whose images expired first.
-- KEYS 1 expiring images (sorted set: job id by due time)
-- ARGV 1 prefix of job records   2 seconds until a claimed entry, or one of a job that has not ended, is due again
--      3 how many due entries to look at
-- Returns {job id, its new due time}, or {} if no entry is due.
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[3])) do
  local state = redis.pcall('HGET', ARGV[1] .. id, 'state')  -- an error is a table: the key holds no record
  redis.call('ZADD', KEYS[1], string.format('%.6f', now + ARGV[2]), id)
  if state ~= 'queued' and state ~= 'running' then return {id, redis.call('ZSCORE', KEYS[1], id)} end
end
return {}
