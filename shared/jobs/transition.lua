-- Move a job record to another state and put the callback for it into the outbox, or change nothing.
-- If the producer asked to cancel, the job may only end: it can neither start nor be requeued.
-- KEYS 1 job record (hash)   2 outbox (sorted set: id by due time)   3 outbox messages (hash)
--      4 ends of jobs (hash; see `job_ends.lua`, which derives keys from it)   5 failures by host: what the keys begin with
--      6 claims of the worker (hash), only with ARGV 8 or 12
--      7 deliveries (hash: sha1 of message -> count)   8 the job's result for Celery (string), both only with ARGV 12
--      last: expiring images of a store (sorted set: job id by due time), only with ARGV 10
-- ARGV 1 attempt that must hold the job ('': any)
--      2 states it may leave, as ',queued,running,'        3 state it enters
--      4 field that takes the server's time ('': none)     5 seconds until it expires (0: never)
--      6 callback id ('': none)                            7 callback message JSON
--      8 tag that must be among the claims ('': none)
--      9 seconds after its submission within which the job must start for the first time ('': for ever)
--      10 seconds from now until its images expire (0: never; '': leave the entry as it is)   11 job id
--      12 tag of the claim to acknowledge with the transition ('': none)
--      13 result in Celery's form, which is stored and published, too ('': none)   14 seconds it is kept (0: for ever)
--      15 SHA-1 of the request that the message was stored with ('': not known)
--      16 host ('': any): the job does not start if it failed on this host before, alone on devices that are healthy
--      17.. field, value, field, value ...; an empty value deletes the field. The value of the field `failure`, a code
--        and a message, is added to `failures`
-- Returns {1 if it was applied else 0, state before ('' if there is no record), attempt before,
-- 1 if it was refused because the producer asked to cancel else 0, submitted_at, retries,
-- 1 if it was refused because the job did not start in time else 0,
-- 1 if the result was stored and the claim acknowledged, as ARGV 12 asks, else 0,
-- 1 if it was refused because the record is of another request: the job of the message was deleted, and its id given
-- to another job, else 0, failures of the record before, 1 if it was refused for ARGV 16 else 0}.
local TERMINAL = {succeeded = true, failed = true, cancelled = true}

local record = redis.call(
  'HMGET', KEYS[1], 'state', 'attempt', 'cancel_requested', 'submitted_at', 'retries', 'deliveries', 'ends',
  'failures')
local state, attempt = record[1] or '', record[2] or ''
local function answer(happened, cancel_requested, expired, acknowledged, superseded, failed_here)
  return {
    happened, state, attempt, cancel_requested, record[4] or '0', record[5] or '0', expired,
    acknowledged or 0, superseded or 0, record[8] or '', failed_here or 0}
end

-- Store the result for Celery, then release the claim: both, or neither if a key holds something else. Whoever
-- claims the message of an ended job acknowledges it and stores its result, so the caller may do both later.
local function acknowledge(tag, result, kept_s)
  local entry = redis.pcall('HGET', KEYS[6], tag)
  if type(entry) ~= 'string' then return 0 end
  if result ~= '' then
    local stored = kept_s == '0' and redis.pcall('SET', KEYS[8], result)
      or redis.pcall('SETEX', KEYS[8], kept_s, result)
    if stored.err or type(redis.pcall('PUBLISH', KEYS[8], result)) ~= 'number' then return 0 end
  end
  redis.call('HDEL', KEYS[6], tag)
  local _, message = split_entry(entry)
  local any_redelivered = redis.pcall('HLEN', KEYS[7])
  if message and type(any_redelivered) == 'number' and any_redelivered > 0 then
    redis.call('HDEL', KEYS[7], redis.sha1hex(message))
  end
  return 1
end
if state == '' or (ARGV[8] ~= '' and redis.call('HEXISTS', KEYS[6], ARGV[8]) == 0) then return answer(0, 0, 0) end
if is_superseded(KEYS[1], ARGV[15]) then return answer(0, 0, 0, 0, 1) end
if not string.find(ARGV[2], ',' .. state .. ',', 1, true) or (ARGV[1] ~= '' and ARGV[1] ~= attempt) then
  return answer(0, 0, 0)
end
if record[3] and (ARGV[3] == 'queued' or ARGV[3] == 'running') then return answer(0, 1, 0) end
local clock = redis.call('TIME')
local submitted_at = tonumber(record[4] or '')
local has_started = record[6] or state == 'running'  -- a damaged record may lack `deliveries`
if ARGV[9] ~= '' and submitted_at and not has_started
  and clock[1] + clock[2] / 1e6 > submitted_at + ARGV[9] then
  return answer(0, 0, 1)
end
if ARGV[16] ~= '' and failed_on_host(record[8], ARGV[16]) then return answer(0, 0, 0, 0, 0, 1) end
local now = clock[1] .. '.' .. string.format('%06d', clock[2])
local set, deleted = {'state', ARGV[3]}, {'preview', 'retry_at', 'images_kept_until', 'images_deleted_at'}
local function set_field(name, value)
  set[#set + 1], set[#set + 2] = name, value
end
local function note_failure(code, message)
  set_field('failures', with_failure(record[8], attempt, code, message, now))
  count_failure(KEYS[5], attempt, code, clock[1])
end
if ARGV[4] ~= '' then set_field(ARGV[4], now) end
if state == 'running' and ARGV[3] == 'running' and string.find(attempt, '/', 1, true) then
  note_failure('worker_died', 'the worker died, or lost its lease')
end
local ended_as = ARGV[3]
for i = 17, #ARGV, 2 do
  if ARGV[i] == 'error' then
    local code = string.match(ARGV[i + 1], '^{"code":"([%w_]+)"') or 'unknown'
    ended_as = ended_as .. ':' .. code
    if state == 'running' then count_failure(KEYS[5], attempt, code, clock[1]) end
  end
  if ARGV[i] == 'failure' then
    note_failure(string.match(ARGV[i + 1], '^(%S+) (.*)$'))
  elseif ARGV[i + 1] == '' then
    deleted[#deleted + 1] = ARGV[i]
  else
    set_field(ARGV[i], ARGV[i + 1])
  end
end
local kept_until
if ARGV[10] == '0' then
  redis.pcall('ZREM', KEYS[#KEYS], ARGV[11])
elseif ARGV[10] ~= '' then
  local due = string.format('%.6f', clock[1] + clock[2] / 1e6 + ARGV[10])
  redis.pcall('ZADD', KEYS[#KEYS], due, ARGV[11])  -- a key of another type costs no job
  if ARGV[3] == 'succeeded' then kept_until = due end
end
-- A job that is redriven ends again: the number of its ends tells its callbacks apart.
if TERMINAL[ARGV[3]] then set_field('ends', (tonumber(record[7] or '') or 0) + 1) end
redis.call('HDEL', KEYS[1], unpack(deleted))
if kept_until then set_field('images_kept_until', kept_until) end
redis.call('HSET', KEYS[1], unpack(set))
if TERMINAL[ARGV[3]] then note_end(KEYS[4], KEYS[1], ended_as, clock[1]) end
if ARGV[5] ~= '0' then redis.call('EXPIRE', KEYS[1], ARGV[5]) end
publish_change(KEYS[1], ARGV[3])
if ARGV[6] ~= '' then
  add_callback(KEYS[2], KEYS[3], ARGV[6], ARGV[7], now, occurrence_of(record[4], record[7]))
end
return answer(1, 0, 0, ARGV[12] ~= '' and acknowledge(ARGV[12], ARGV[13], ARGV[14]) or 0)
