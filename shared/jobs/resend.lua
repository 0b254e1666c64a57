-- Queue the message of a queued job again if it has none: `celery purge` deletes messages and leaves records.
-- KEYS 1 job record (hash)   2 queue list of the job   3.. lists that the message may lie in as well: whether jobs
--      of its shape have a queue of their own depends on whether a worker had announced its shapes then, and a
--      worker without the LoRA of the job moves the message to a list of the workers that hold them
-- ARGV 1 job id   2 message   3 seconds since the job was sent last; doubles with each time
--      4 how many messages of each list to search for the job, the oldest first
-- Returns 1 if it was queued again. Nothing is changed otherwise.
local record = redis.call('HMGET', KEYS[1], 'state', 'retry_at', 'submitted_at', 'sent_at', 'resent')
local clock = redis.call('TIME')
local resent = tonumber(record[5]) or 0
local sent_at = tonumber(record[4] or record[3]) or 0
local RETRY_GRACE_S = 300  -- how long a retry that is due may take to come back to its queue
if record[1] ~= 'queued' then return 0 end
if clock[1] - RETRY_GRACE_S < (tonumber(record[2]) or 0) then return 0 end  -- it is delayed
if clock[1] + clock[2] / 1e6 < sent_at + ARGV[3] * 2 ^ math.min(resent, 20) then return 0 end
local id = '"' .. ARGV[1] .. '"'
for i = 2, #KEYS do
  if redis.call('TYPE', KEYS[i]).ok == 'list' then
    -- In a longer queue the message may lie deeper. Only who asks for this very job gets a second one then.
    if tonumber(ARGV[3]) > 0 and redis.call('LLEN', KEYS[i]) > tonumber(ARGV[4]) then return 0 end
    for _, message in ipairs(redis.call('LRANGE', KEYS[i], -ARGV[4], -1)) do
      if string.find(message, id, 1, true) then return 0 end
    end
  end
end
redis.call('HSET', KEYS[1], 'sent_at', clock[1], 'resent', resent + 1)
push_message('LPUSH', KEYS[2], ARGV[2])
return 1
