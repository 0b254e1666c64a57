-- Let go of one message: finished for good, or back to the head of its queue.
-- KEYS 1 this worker's claims   2 deliveries   3 record of the job it asks for (none: it asks for none)
-- ARGV 1 tag   2 '1' to put it back   3 what its delivery count grows by then
--      4 attempt this worker made at the job   5 field of the record, which is then `state|attempt|…`
--        ('' if the record is a hash of its own)
-- A job that is still open by its record goes back in any case: what ended it, this server never heard
-- of (it was a replica then), or the attempt had not begun for it.
-- Returns 1; 2 if it went back for that; 0 if the claim is not this worker's any more.
local entry = redis.call('HGET', KEYS[1], ARGV[1])
if not entry then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
local cut = string.find(entry, '\0', 1, true)
local message = string.sub(entry, cut + 1)

local function still_open()
  local state, attempt
  if ARGV[5] ~= '' then
    state, attempt = string.match(redis.call('HGET', KEYS[3], ARGV[5]) or '', '^([^|]*)|([^|]*)')
  else
    state, attempt = unpack(redis.call('HMGET', KEYS[3], 'state', 'attempt'))
  end
  return state == 'queued' or (state == 'running' and attempt == ARGV[4])
end

local function back() put_back(string.sub(entry, 1, cut - 1), message) end

if ARGV[2] == '1' then
  back()
  if ARGV[3] ~= '0' then redis.call('HINCRBY', KEYS[2], redis.sha1hex(message), ARGV[3]) end
elseif KEYS[3] and still_open() then
  back()
  return 2
else
  redis.call('HDEL', KEYS[2], redis.sha1hex(message))
end
return 1
