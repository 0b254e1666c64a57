-- Move one shard's record from one state to another, and the counts of its run with it; or do
-- nothing. A record is `state|attempt|worker|done|failed|tries`; done and failed count samples.
-- KEYS 1 run (hash)   2 its shards (hash: number -> record)   3 its workers (hash: name -> samples)
--      4 claims of the worker that asks (hash; looked at only with ARGV 8)
--      5 list for the message (used only with ARGV 9)
-- ARGV 1 shard   2 attempt that must hold it ('' asks for none)
--      3 states it may leave, as ',none,queued,'; `none` is a shard without a record
--      4 state it enters   5 attempt that holds it then   6 worker
--      7 'done|failed' ('' keeps what is there)
--      8 tag that must be among the claims ('' asks for none)
--      9 message ('' sends none)   10 seconds to keep an ended run
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
  or (ARGV[8] ~= '' and redis.call('HEXISTS', KEYS[4], ARGV[8]) == 0) then
  return {0, before, run}
end

-- A run that has stopped begins nothing more, and what comes back to it has no message any more.
local enters, attempt = ARGV[4], ARGV[5]
local begins = enters == 'running' and attempt ~= record[2]
local stopped = begins and run ~= 'running'
if stopped or (enters == 'queued' and ARGV[9] == '' and run ~= 'running') then
  enters, attempt = 'cancelled', ''
end

local done, failed = record[DONE], record[FAILED]
if ARGV[7] ~= '' and not stopped then done, failed = string.match(ARGV[7], '(%d+)|(%d+)') end
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
local tries = tonumber(record[6]) + (begins and not stopped and 1 or 0)
redis.call('HSET', KEYS[2], ARGV[1],
  table.concat({enters, attempt, ARGV[6], done, failed, tries}, '|'))
if ARGV[9] ~= '' then redis.call('LPUSH', KEYS[5], ARGV[9]) end

local function count(field) return tonumber(redis.call('HGET', KEYS[1], field) or '0') end
local function finish(state)
  run = state
  redis.call('HSET', KEYS[1], 'state', state, 'finished_at', redis.call('TIME')[1])
  for i = 1, 3 do redis.call('EXPIRE', KEYS[i], ARGV[10]) end
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
if stopped then return {0, before, run} end
return {1, before, run}
