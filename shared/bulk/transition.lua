-- Change one shard's record from one state to another, and update the counts of its run; or change
-- nothing. A record is `state|attempt|worker|done|failed|tries`; done and failed count samples.
-- KEYS 1 run (hash)   2 its shards (hash: number -> record)   3 its workers (hash: name -> samples)
--      4 its failure reasons (hash: number -> failed samples by error code)
--      5 the latest errors of shards (hash: number -> `seconds|code|worker|message`)
--      6 claims of the calling worker (hash; read only with ARGV 8)
--      7 list for the message (used only with ARGV 9)   8 leases (sorted set: worker -> expiry)
--      9 outbox (sorted set)   10 its messages (hash), both for the events of the run
-- ARGV 1 shard   2 attempt that must hold the shard ('' requires none)
--      3 states that the shard may have now, as ',none,queued,'; `none` is a shard without a record
--      4 new state   5 attempt that holds the shard afterwards   6 worker
--      7 'done|failed' ('' keeps the stored counts)
--      8 tag that must be among the claims ('' requires none)
--      9 message ('' sends none)   10 seconds to keep the records of an ended run
--      11 failed samples by error code, as JSON ('' keeps the stored ones)
--      12 prefix of the claims hashes   13 id of the shard's messages
--      14 error of the shard, as `code|worker|message` ('' keeps the stored one until the shard gets on)
-- Returns {1 or 0, state before, state of the run now}; 0 means that the change did not happen.
local DONE, FAILED, MAX_ERRORS = 4, 5, 100
for i = 2, 5 do set_aside_unless('hash', KEYS[i]) end
local run_state = redis.call('HGET', KEYS[1], 'state') or ''
local stored = redis.call('HGET', KEYS[2], ARGV[1])
local record = parse_shard_record(stored)
local before = record[1]
if run_state == '' or not string.find(ARGV[3], ',' .. before .. ',', 1, true)
  or (ARGV[2] ~= '' and ARGV[2] ~= record[2])
  or (ARGV[8] ~= '' and redis.call('HEXISTS', KEYS[6], ARGV[8]) == 0) then
  return {0, before, run_state}
end

if stored and before == 'none' then recount_run(KEYS[1], KEYS[2]) end  -- the record is damaged
if run_state == 'running' then reopen_report(KEYS[1]) end
local new_state, attempt = ARGV[4], ARGV[5]
local begins = new_state == 'running' and attempt ~= record[2]

-- A shard may have two messages. Only the one that is in work counts: if the attempts took the
-- shard from each other, neither would finish. A holder without a lease does not count, because its
-- claims are reclaimed already or never will be.
local function is_claimed_by_another_message()
  local holder_claims = ARGV[12] .. record[3]
  if not redis.call('ZSCORE', KEYS[8], record[3]) then return false end
  local claims = read_derived('HGETALL', holder_claims)  -- an error is a table without numbers
  for i = 1, #claims, 2 do
    local is_own = holder_claims == KEYS[6] and claims[i] == ARGV[8]
    if not is_own and string.find(claims[i + 1], '"' .. ARGV[13] .. '"', 1, true) then
      return true
    end
  end
  return false
end
if begins and before == 'running' and is_claimed_by_another_message() then
  return {0, before, run_state}
end

-- In a run that has stopped no shard begins. A shard that is requeued to it becomes cancelled,
-- because its message is deleted.
local stopped = begins and run_state ~= 'running'
if stopped or (new_state == 'queued' and ARGV[9] == '' and run_state ~= 'running') then
  new_state, attempt = 'cancelled', ''
end

local done, failed = record[DONE], record[FAILED]
local reasons = ARGV[11]
if ARGV[7] ~= '' and not stopped then
  done, failed = string.match(ARGV[7], '(%d+)|(%d+)')
elseif before == 'failed' then
  done, failed, reasons = 0, 0, '{}'
end
local more_done = tonumber(done) - tonumber(record[DONE])
if more_done ~= 0 then
  redis.call('HINCRBY', KEYS[1], 'images', more_done)
  if ARGV[6] ~= '' and more_done > 0 then redis.call('HINCRBY', KEYS[3], ARGV[6], more_done) end
end
local more_failed = tonumber(failed) - tonumber(record[FAILED])
if more_failed ~= 0 then redis.call('HINCRBY', KEYS[1], 'failed_images', more_failed) end
if before ~= new_state then
  if before ~= 'none' then redis.call('HINCRBY', KEYS[1], 'shards:' .. before, -1) end
  redis.call('HINCRBY', KEYS[1], 'shards:' .. new_state, 1)
end
if reasons == '{}' then
  redis.call('HDEL', KEYS[4], ARGV[1])
elseif reasons ~= '' then
  redis.call('HSET', KEYS[4], ARGV[1], reasons)
end
if ARGV[14] ~= '' then
  local is_known = redis.call('HEXISTS', KEYS[5], ARGV[1]) == 1
  if is_known or redis.call('HLEN', KEYS[5]) < MAX_ERRORS then
    redis.call('HSET', KEYS[5], ARGV[1], redis.call('TIME')[1] .. '|' .. ARGV[14])
  end
elseif new_state == 'succeeded' or more_done > 0 or ARGV[9] ~= '' then
  redis.call('HDEL', KEYS[5], ARGV[1])
end
local tries = tonumber(record[6]) + (begins and not stopped and 1 or 0)
redis.call('HSET', KEYS[2], ARGV[1],
  table.concat({new_state, attempt, ARGV[6], done, failed, tries}, '|'))
redis.call('HSET', KEYS[1], 'moved_at', redis.call('TIME')[1])
if ARGV[9] ~= '' then redis.call('LPUSH', KEYS[7], ARGV[9]) end

local function count(field) return tonumber(redis.call('HGET', KEYS[1], field)) or 0 end
local function finish_run(state)
  run_state = state
  redis.call('HSET', KEYS[1], 'state', state, 'finished_at', redis.call('TIME')[1])
end
if run_state == 'running' then
  local max_failures = redis.call('HGET', KEYS[1], 'max_failures') or ''
  local shards_succeeded, shards_failed = count('shards:succeeded'), count('shards:failed')
  if max_failures ~= '' and more_failed > 0 and count('failed_images') > (tonumber(max_failures) or math.huge) then
    finish_run('failed')
  elseif shards_succeeded + shards_failed == count('shards') then
    finish_run(shards_failed > 0 and 'failed' or 'succeeded')
  end
end
report_run(KEYS[1], KEYS[9], KEYS[10], false)
if run_state ~= 'running' then
  for i = 1, 5 do redis.call('EXPIRE', KEYS[i], ARGV[10]) end
end
if stopped then return {0, before, run_state} end
return {1, before, run_state}
