-- Count the waiting jobs of tenants. Defines functions for submit.lua; reads no KEYS or ARGV.
-- Anybody may invent tenants, and Redis serves nobody else meanwhile. So beyond MAX_COUNTED known queues a call counts
-- only the next ones. A limit is then compared with the last complete count, and with what was accepted since.
local MAX_COUNTED = 512  -- queues up to which a call counts all
local COUNTED_PER_CALL = 256
local MAX_AGE_S = 60

-- Return the jobs in some queues, by tenant, and as '*' of all.
local function count_jobs(queues)
  local jobs = {['*'] = 0}
  for _, queue in ipairs(queues) do
    local tenant, waiting = tenant_of(queue) or '', 0
    for _, level in ipairs(LEVELS) do
      local length = redis.pcall('LLEN', queue .. level)  -- a key of another type holds no jobs
      if type(length) == 'number' then waiting = waiting + length end
    end
    jobs[tenant] = (jobs[tenant] or 0) + waiting
    jobs['*'] = jobs['*'] + waiting
  end
  return jobs
end

-- Count the next queues into the hash `partial`. After the last ones it becomes the hash `complete`.
local function count_next(known, partial, complete)
  local answer = redis.call('SSCAN', known, redis.call('HGET', partial, '@cursor') or '0', 'COUNT', COUNTED_PER_CALL)
  for tenant, jobs in pairs(count_jobs(answer[2])) do
    if jobs > 0 then redis.call('HINCRBY', partial, tenant, jobs) end
  end
  redis.call('HSET', partial, '@cursor', answer[1])
  if answer[1] == '0' then
    redis.call('HDEL', partial, '@cursor')
    redis.call('DEL', complete)
    if redis.call('EXISTS', partial) == 1 then redis.call('RENAME', partial, complete) end
  end
  redis.call('EXPIRE', partial, MAX_AGE_S)
  redis.call('EXPIRE', complete, MAX_AGE_S)
end

-- Return a function that returns the waiting jobs of a tenant, or of all ('*').
local function count_waiting(known)
  if redis.call('SCARD', known) <= MAX_COUNTED then
    local jobs = count_jobs(redis.call('SMEMBERS', known))
    return function(tenant) return jobs[tenant] or 0 end
  end
  local partial, complete = known .. ':counting', known .. ':waiting'
  count_next(known, partial, complete)
  return function(tenant)
    return tonumber(redis.call('HGET', complete, tenant) or redis.call('HGET', partial, tenant) or 0)
  end
end

-- Add accepted jobs to the last complete count, if it is in use.
local function add_accepted(known, accepted)
  local complete = known .. ':waiting'
  if redis.call('EXISTS', complete) == 0 then return end
  for tenant, jobs in pairs(accepted) do
    if jobs > 0 then redis.call('HINCRBY', complete, tenant, jobs) end
  end
end
