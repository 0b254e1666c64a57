-- Record the progress of running attempts, and put their callbacks into the outbox.
-- KEYS 1 outbox (sorted set: id by due time)   2 outbox messages (hash)   3.. job records (hash)
-- ARGV six for each job: attempt   step ('' to record nothing, and only answer)   steps
--      callback id ('' for none)   callback message JSON   preview ('' for none)
-- Returns for each job 1, 0 if the producer asked to cancel, -1 if the attempt does not hold the job any more.
local FIELDS = 6
local now = redis.call('TIME')[1]

local function record_progress(key, attempt, step, steps, callback, message, preview)
  local record = redis.pcall('HMGET', key, 'state', 'attempt', 'cancel_requested')
  if record.err or record[1] ~= 'running' or record[2] ~= attempt then return -1 end
  if step ~= '' then redis.call('HSET', key, 'step', step, 'steps', steps) end
  if preview ~= '' then redis.call('HSET', key, 'preview', preview) end
  if step ~= '' or preview ~= '' then publish_change(key, record[1]) end
  if callback ~= '' then
    local occurrence = occurrence_of(unpack(redis.call('HMGET', key, 'submitted_at', 'ends')))
    add_callback(KEYS[1], KEYS[2], callback, message, now, occurrence)
  end
  return record[3] and 0 or 1
end

local answers = {}
for i = 3, #KEYS do
  local at = (i - 3) * FIELDS
  answers[#answers + 1] = record_progress(KEYS[i], unpack(ARGV, at + 1, at + FIELDS))
end
return answers
