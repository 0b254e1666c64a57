-- Claim the job whose images expired first. The record of a job that succeeded decides until when they are kept:
-- an attempt that reached the store by another address cannot change the entry of an earlier one.
-- KEYS 1 expiring images (sorted set: job id by due time)
-- ARGV 1 prefix of job records   2 seconds until a claimed entry, or one of a job that has not ended, is due again
--      3 how many due entries to look at
-- Returns {job id, its new due time}, or {} if no entry is due.
local clock = redis.call('TIME')
local now = clock[1] + clock[2] / 1e6
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[3])) do
  local record = read_derived('HMGET', ARGV[1] .. id, 'state', 'images_kept_until')
  local state, kept_until = record[1], tonumber(record[2] or '')  -- both nil if the key holds no record
  if state == 'succeeded' and not kept_until then
    redis.call('ZREM', KEYS[1], id)  -- an earlier attempt wrote the entry; the images are kept for ever
  elseif state == 'succeeded' and kept_until > now then
    redis.call('ZADD', KEYS[1], string.format('%.6f', kept_until), id)
  else
    redis.call('ZADD', KEYS[1], string.format('%.6f', now + ARGV[2]), id)
    if state ~= 'queued' and state ~= 'running' then return {id, redis.call('ZSCORE', KEYS[1], id)} end
  end
end
return {}
