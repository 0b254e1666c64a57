-- Release one claimed message: acknowledge it, or requeue it at the head of its queue.
-- A message is requeued instead of acknowledged if the record of its job has not ended: the end was lost
-- with another server (this one was a replica then), or so was the start of the attempt, or the message broke
-- its task. The caller counts a delivery then, so that no message goes round for ever.
-- KEYS 1 claims of this worker (hash: tag -> list \0 message)   2 deliveries (hash: sha1 of message -> count)
--      3 record of the job (hash; missing: acknowledge in any case)
-- ARGV 1 tag   2 '1' to requeue   3 deliveries to count when it is requeued
--      4 attempt of this claim   5 field of the record that holds `state|attempt|…` ('': the record has
--        fields `state` and `attempt`)
-- Returns 1; 2 if it was requeued because its record has not ended; 0 if this worker did not hold it.
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
local list, message = split_entry(entry)
if not list then return 1 end

-- A damaged record is not open: pcall returns a table with a field `err` then.
local function record_is_open()
  local state, attempt
  if ARGV[5] ~= '' then
    local shard = redis.pcall('HGET', KEYS[3], ARGV[5])
    state, attempt = string.match(type(shard) == 'string' and shard or '', '^([^|]*)|([^|]*)')
  else
    state, attempt = unpack(redis.pcall('HMGET', KEYS[3], 'state', 'attempt'))
    -- This attempt failed the job, and its dead letter has been redriven: another message of the job is queued.
    if state == 'queued' and attempt == ARGV[4] then return false end
  end
  return state == 'queued' or (state == 'running' and attempt == ARGV[4])
end

local function requeue(deliveries)
  requeue_message(list, message)
  if deliveries ~= '0' then redis.call('HINCRBY', KEYS[2], redis.sha1hex(message), deliveries) end
end

if ARGV[2] == '1' then
  requeue(ARGV[3])
elseif KEYS[3] and record_is_open() then
  requeue(ARGV[3])
  return 2
else
  redis.call('HDEL', KEYS[2], redis.sha1hex(message))
end
return 1
