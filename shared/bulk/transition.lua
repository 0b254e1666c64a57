-- Move one shard's record from one state to another, and the counts of its run with it; or do
-- nothing. A record is `state|attempt|worker|done|failed|tries`; done and failed count samples.
-- KEYS 1 run (hash)   2 its shards (hash: number -> record)   3 its workers (hash: name -> samples)
--      4 its reasons (hash: number -> failed samples by error code)
--      5 claims of the worker that asks (hash; looked at only with ARGV 8)
--      6 list for the message (used only with ARGV 9)   7 leases (sorted set: worker -> expiry)
-- ARGV 1 shard   2 attempt that must hold it ('' asks for none)
--      3 states it may leave, as ',none,queued,'; `none` is a shard without a record
--      4 state it enters   5 attempt that holds it then   6 worker
--      7 'done|failed' ('' keeps what is there)
--      8 tag that must be among the claims ('' asks for none)
--      9 message ('' sends none)   10 seconds to keep an ended run
--      11 failed samples by error code, as JSON ('' keeps what is there)
--      12 prefix of the claims hashes   13 id of the shard's messages
-- Returns {1 or 0, state before, state of the run now}.
local DONE, FAILED = 4, 5
local run = redis.call('HGET', KEYS[1], 'state') or ''
local record = {}
for part in string.gmatch((redis.call('HGET', KEYS[2], ARGV[1]) or 'none|||0|0|0') .. '|', '([^|]*)|') do
  record[#record + 1] = part
end
local before = record[1]
if run == '' or not string.find(ARGV[3], ',' .. before .. ',', 1, true)
  or (ARGV[2] ~= '' and ARGV[2] ~= record[2])
  or (ARGV[8] ~= '' and redis.call('HEXISTS', KEYS[5], ARGV[8]) == 0) then
  return {0, before, run}
end

local enters, attempt = ARGV[4], ARGV[5]
local begins = enters == 'running' and attempt ~= record[2]

-- Of two messages for one shard the one that is being worked on counts: taking the shard from each
-- other, neither would end. A holder whose lease is gone has been swept, or will never be.
local function is_in_other_hands()
  local holders = ARGV[12] .. record[3]
  if not redis.call('ZSCORE', KEYS[7], record[3]) then return false end
  local claims = redis.call('HGETALL', holders)
  for i = 1, #claims, 2 do
    local this = holders == KEYS[5] and claims[i] == ARGV[8]
    if not this and string.find(claims[i + 1], '"' .. ARGV[13] .. '"', 1, true) then return true end
  end
  return false
end
if begins and before == 'running' and is_in_other_hands() then return {0, before, run} end

-- A run that has stopped begins nothing more, and what comes back to it has no message any more.
local stopped = begins and run ~= 'running'
if stopped or (enters == 'queued' and ARGV[9] == '' and run ~= 'running') then
  enters, attempt = 'cancelled', ''
end

local done, failed = record[DONE], record[FAILED]
local reasons = ARGV[11]
if ARGV[7] ~= '' and not stopped then
  done, failed = string.match(ARGV[7], '(%d+)|(%d+)')
elseif before == 'failed' then
  done, failed, reasons = 0, 0, '{}'
end
local more = tonumber(done) - tonumber(record[DONE])
if more ~= 0 then
  redis.call('HINCRBY', KEYS[1], 'images', more)
  if ARGV[6] ~= '' and more > 0 then redis.call('HINCRBY', KEYS[3], ARGV[6], more) end
end
local worse = tonumber(failed) - tonumber(record[FAILED])
if worse ~= 0 then redis.call('HINCRBY', KEYS[1], 'failed_images', worse) end
if before ~= enters then
  if before ~= 'none' then redis.call('HINCRBY', KEYS[1], 'shards:' .. before, -1) end
  redis.call('HINCRBY', KEYS[1], 'shards:' .. enters, 1)
end
if reasons == '{}' then
  redis.call('HDEL', KEYS[4], ARGV[1])
elseif reasons ~= '' then
  redis.call('HSET', KEYS[4], ARGV[1], reasons)
end
local tries = tonumber(record[6]) + (begins and not stopped and 1 or 0)
redis.call('HSET', KEYS[2], ARGV[1],
  table.concat({enters, attempt, ARGV[6], done, failed, tries}, '|'))
redis.call('HSET', KEYS[1], 'moved_at', redis.call('TIME')[1])
if ARGV[9] ~= '' then redis.call('LPUSH', KEYS[6], ARGV[9]) end

local function count(field) return tonumber(redis.call('HGET', KEYS[1], field) or '0') end
local function finish(state)
  run = state
  redis.call('HSET', KEYS[1], 'state', state, 'finished_at', redis.call('TIME')[1])
end
if run == 'running' then
  local most = redis.call('HGET', KEYS[1], 'max_failures') or ''
  local succeeded, lost = count('shards:succeeded'), count('shards:failed')
  if most ~= '' and worse > 0 and count('failed_images') > tonumber(most) then
    finish('failed')
  elseif succeeded + lost == count('shards') then
    finish(lost > 0 and 'failed' or 'succeeded')
  end
end
if run ~= 'running' then
  for i = 1, 4 do redis.call('EXPIRE', KEYS[i], ARGV[10]) end
end
if stopped then return {0, before, run} end
return {1, before, run}
