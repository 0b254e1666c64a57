-- Count the waiting jobs of the tenants that have a limit. Defines functions for submit.lua; reads no KEYS or ARGV.
-- Anybody may invent tenants, and Redis serves nobody else while a script runs. So a count of more than MAX_COUNTED
-- queues is used again for a while, with what was accepted since. Jobs that were claimed since are still in it:
-- it may be too large for that while.
local MAX_COUNTED = 512  -- known queues up to which each call counts
local QUEUES_PER_S = 10000  -- counting so many takes Redis some 20 ms, and is done once a second at most

-- Count the jobs in the known queues. Return the jobs by tenant, and as '*' of all, for each name that has a limit.
local function count_jobs(known, limits)
  local jobs = {}
  for _, name in ipairs(redis.call('HKEYS', limits)) do jobs[name] = 0 end
  for _, queue in ipairs(redis.call('SMEMBERS', known)) do
    local tenant = tenant_of(queue) or ''
    if jobs['*'] or jobs[tenant] then
      local waiting = 0
      for _, level in ipairs(LEVELS) do
        local length = redis.pcall('LLEN', queue .. level)  -- a key of another type holds no jobs
        if type(length) == 'number' then waiting = waiting + length end
      end
      if jobs['*'] then jobs['*'] = jobs['*'] + waiting end
      if jobs[tenant] then jobs[tenant] = jobs[tenant] + waiting end
    end
  end
  return jobs
end

-- Return a function that returns the waiting jobs of a tenant with a limit, or of all ('*').
local function count_waiting(known, limits)
  local queues, counts = set_size(known), known .. ':waiting'
  local jobs = queues <= MAX_COUNTED and count_jobs(known, limits)
  return function(tenant)
    if jobs then return jobs[tenant] end
    set_aside_unless('hash', counts)
    local counted = redis.call('HGET', counts, tenant)
    if counted then return tonumber(counted) end
    jobs = count_jobs(known, limits)  -- there is no count, or this limit is newer than the count
    redis.call('DEL', counts)
    for name, number in pairs(jobs) do redis.call('HSET', counts, name, number) end
    redis.call('EXPIRE', counts, math.ceil(queues / QUEUES_PER_S))
    return jobs[tenant]
  end
end

-- Add accepted jobs to the last count, if it is in use.
local function add_accepted(known, accepted)
  local counts = known .. ':waiting'
  for tenant, jobs in pairs(accepted) do
    if jobs > 0 and redis.pcall('HEXISTS', counts, tenant) == 1 then  -- a key of another type holds no counts
      redis.call('HINCRBY', counts, tenant, jobs)
    end
  end
end
