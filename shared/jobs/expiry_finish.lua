-- Remove the entry of a job whose images are deleted, unless the job was started again since they were claimed.
-- KEYS 1 expiring images (sorted set: job id by due time)   2 job record (hash)
-- ARGV 1 job id   2 the due time that the claim returned
-- Returns 1 if the entry was removed, else 0.
if redis.call('ZSCORE', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('ZREM', KEYS[1], ARGV[1])
if redis.call('TYPE', KEYS[2]).ok == 'hash' and redis.call('HEXISTS', KEYS[2], 'result') == 1 then
  redis.call('HSET', KEYS[2], 'images_deleted_at', redis.call('TIME')[1])
end
return 1
